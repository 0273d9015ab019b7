"""The pure parts of backup and verification." " " """

"""Tenants, their keys, logins and changefeeds."""

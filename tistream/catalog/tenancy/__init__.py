"""Tenants, their keys, logins, consumers and changefeeds."""

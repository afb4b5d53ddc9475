"""Schedules for devices whose threads run in blocks."""

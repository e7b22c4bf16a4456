"""The API from outside, through a real server process."""

"""What people see of a running server: log lines and figures. No module here decides anything."""

"""The command line: output, `--json`, exit codes."""

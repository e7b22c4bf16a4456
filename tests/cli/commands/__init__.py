"""Every command of `slate`, mostly run in this process; `running` says how."""

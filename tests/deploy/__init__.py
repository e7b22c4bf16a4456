"""What deploy/ says is true: settings that exist, processes that start as it says."""

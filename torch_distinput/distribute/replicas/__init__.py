"""What runs once per local replica: its thread, its module and its values."""

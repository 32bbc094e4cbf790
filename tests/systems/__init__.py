"""What people write on macOS and Windows, where nobody has run it yet: see ``take_away``."""

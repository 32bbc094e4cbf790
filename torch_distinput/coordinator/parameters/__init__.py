"""Parameters of a module that live on servers: placed, pulled, pushed, saved whole."""

"""Who is there, late or gone, and where all stop: statuses that workers post once a second."""

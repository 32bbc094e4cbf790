"""Objects of the user's that give examples: started, told the epoch, and asked for their state."""

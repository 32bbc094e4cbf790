"""Who gets what: functions of integers. No tensor, file, rank detection or clock enters here."""

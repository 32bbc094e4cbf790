"""Who gets what: functions of integers. It sees no tensor, file, rank or clock."""

"""What must share a stage; graphs split by plans, checked, and read as stages."""

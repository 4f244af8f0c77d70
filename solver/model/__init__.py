"""What a problem, a plan and the limits of a search are; every other room stands on this one."""

"""`make soak`: mixed load with faults for minutes; checks for growth and wrong sums."""

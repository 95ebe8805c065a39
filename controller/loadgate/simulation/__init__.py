"""What would happen? Discrete events in virtual time, around the rules that run in production.

`scenario` reads what happens, `run` lets it happen, `results` says what came of it, `report`
shows it to people. `theory` and `oracles` know what the best possible result is.
"""

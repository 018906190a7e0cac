"""The order in which passes run: recipes of names, look-up of the passes behind them, and passes of the user's."""

"""How long a model would train on machines that are not here, with an error bar.

Counted operations and bytes of a step are divided by the rates of a card, and a few multipliers, fitted on
measured bundles, say which share of each rate training reaches. Imports planning's plan and memory
prediction, and what is below them. Pure. Entry point: `predicted_machines.Predictor`.
"""

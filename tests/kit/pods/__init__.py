"""Runs the chart's manifests as processes: a network namespace per pod, a root folder per container."""

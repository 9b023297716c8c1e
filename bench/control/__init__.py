"""The operator's side: images, the engines that run them, and what is checked before anything starts."""

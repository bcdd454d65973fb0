"""A recorded run in a page: its steps, how each follows from others, and the attentions among them."""

"""Is an attention module right, and if not, which bug has it, on which line?"""

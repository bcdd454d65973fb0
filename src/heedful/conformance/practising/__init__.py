"""`heedful practise`: a right attention with one bug for a learner to find, hints, grading and progress."""

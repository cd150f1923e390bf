"""Twenty short requests of the kinds that people send."""

PROMPTS = [
    "Write a Python function that reverses a string.",
    "What is the capital of Australia?",
    "Explain recursion to a ten-year-old in three sentences.",
    "Translate to French: The cat sleeps on the sofa.",
    "List four prime numbers greater than 50.",
    "Write a haiku about the sea.",
    "Fix this code: for i in range(10) print(i)",
    "Give me a JSON object with the keys name and age.",
    "Summarise in one line: Water boils at 100 degrees at sea level and at less on a mountain.",
    "Write a bash one-liner that counts the lines of all .py files.",
    "What is the difference between a list and a tuple in Python?",
    "Write an SQL query for the five newest orders of customer 42.",
    "Is 91 a prime number? Answer yes or no and say why.",
    "Write a polite reply that declines a meeting on Friday.",
    "Convert 20 degrees Celsius to Fahrenheit.",
    "Write a JavaScript function that removes duplicates from an array.",
    "Name three uses for an old newspaper.",
    "What does the HTTP status 404 mean?",
    "Write a regular expression that matches an e-mail address.",
    "Continue: Once upon a time there was a small robot who",
]

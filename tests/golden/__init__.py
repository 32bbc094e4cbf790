"""The conformance runner: recorded TensorFlow programs, played through our public API.

``python -m tests.golden PATH`` plays a file of recorded cases. A case walks one way:

    programs   the recorded ops as a small interpreter: what the records are
    facts      what TensorFlow decided about a program: who reads what, which splitter
    sources    the program as one of our sources, and the arguments that go with it
    play       our answer: an observation in the words of the recording
    rules      what differs on purpose: pure functions of the expected side
    compare    expected against observed

Nothing here looks at the name of a case: a file with other numbers is played by the same rules.
"""

"""What the workloads ask, in our own words: questions, a report, notes with records in them, tools' answers."""

from __future__ import annotations

QUESTIONS = (
    "My sourdough bread comes out dense. What are the likely causes, and how do I find out which one it is?",
    "Explain to a twelve-year-old why there are two tides a day and not one.",
    "I have to give a toast at my sister's wedding and hate speaking in public. How do I prepare?",
    "What is the difference between a virus and a bacterium, and why does it matter for treatment?",
    "Plan a weekend in a small harbour town for two people who like walking and dislike museums.",
    "Our team has too many meetings. Suggest a way to halve them without losing track of each other.",
    "How does a bicycle stay upright while it moves? Please mention what is still disputed.",
    "I want to learn enough Italian for a holiday in three months. What would a realistic week look like?",
    "Why do old houses feel damp in summer although the windows are open?",
    "Write an apology to a neighbour whose parcel I opened by mistake.",
    "What should I look at before I buy a used sailing boat of eight metres?",
    "How do noise-cancelling headphones work, and why do they fail with voices?",
)

# For streams that shall go on for long: nothing in them ends soon.
LONG = (
    "Write a long story about a lighthouse keeper who receives letters for somebody who died years ago.",
    "Describe, in great detail and step by step, how a wooden rowing boat is built by hand.",
    "Write a long dialogue between a retired train driver and a child who asks about everything.",
    "Write a detailed guide for people who take over an old apple orchard, season by season.",
    "Tell the history of an invented island from its discovery to the present day, decade by decade.",
    "Write a long letter home from a botanist on an expedition in the mountains.",
    "Explain how a city gets its drinking water, from the spring to the tap, leaving nothing out.",
    "Write the minutes of a very long village meeting about a new bridge; give every speaker a turn.",
)

# Their own words in three sentences of it are asked back.
REPORT = """Report on the ferry line between Norhaven and the islands, third quarter

The line carried 48,200 passengers in the third quarter, which is nine percent more than a year ago. Most of the \
growth came from day visitors in July, when the weather was unusually dry. Commuters, who make up the other half of \
our passengers, used the line as often as before.

Punctuality fell. In the second quarter 94 percent of the departures left within five minutes of the timetable; now \
it is 87 percent. Two thirds of the delays began at the Norhaven terminal, where a single ramp serves both the ferry \
and the freight barge. When the barge is late, the ferry waits, and the delay is carried through the rest of the day. \
The crews did what they could: the crossing itself took no longer than planned on any day but one.

The engine of the Tern was overhauled in August. The repair took eleven days instead of six, because a coupling had \
to be made to measure. During that time the older Plover took over; she burns a third more fuel on the same route and \
has room for sixty passengers fewer. On four afternoons people were left on the quay, and we paid for their taxis to \
the bridge. The cost of this replacement service was 31,000 crowns, which no budget had foreseen.

Complaints doubled to 112. Fifty-one of them concern the ticket machine on Little Stack, which has been out of order \
since a lightning strike on 9 August. A new machine is ordered and should arrive in November. Until then tickets are \
sold on board, which slows boarding by four minutes on a full ship. Twelve letters praised the crew of the Plover.

We propose three steps. First, the freight barge should move to the eastern quay, which the harbour office supports \
and which would cost 18,000 crowns. Second, a spare coupling for the Tern should be kept in store. Third, the winter \
timetable should give five more minutes to every crossing after four in the afternoon, so that one delay does not \
spoil a whole evening. The board is asked to decide on the first step before the end of the year, because the eastern \
quay will be let to somebody else after that."""

# Each asks for records out of prose; the keys are named so that the output's shape repeats.
NOTES = (
    (
        "name, boat, day, hours",
        "Lena Foss had the Heron on Monday and was out for three hours. On Tuesday nobody rowed before noon; then "
        "Omar Lind took the Kestrel for an hour and a half. Wednesday brought two trips: Ida Brandt with the "
        "Heron, two hours, and old Mr Salo with the Dipper, who came back after forty-five minutes because of the "
        "wind. Petra Noll booked the Kestrel for Thursday, four hours, and kept it for all of them. On Friday Lena "
        "Foss was there again, this time with the Dipper, for two hours. Jonas Weil took the Swift on Saturday, "
        "three and a half hours, and "
        "on Sunday Ida Brandt and the Heron were out for an hour.",
    ),
    (
        "item, amount, unit, price",
        "From the market I brought four kilos of potatoes for 6.80, a dozen eggs for 4.20 and two litres of milk for "
        "2.60. The cheese was 300 grams at 7.50, the butter a half-pound at 3.10. Then there were three loaves of rye "
        "bread for 11.40, five hundred grams of coffee at 8.90, six bottles of apple juice for 15.00, a kilo of onions "
        "for 1.70 and two jars of honey at 13.00 together.",
    ),
    (
        "station, opened, platforms, staff",
        "The line has eight stations. Norhaven opened in 1884 and has six platforms and a staff of forty. Millbrook "
        "followed in 1886 with two platforms and five people. Ashby is from 1891: three platforms, nine people. The "
        "halt at Fen opened in 1902, has one platform and nobody works there. Greyford, 1903, has four platforms and "
        "twelve people; Upper Greyford, 1927, one platform and one person. Saltmarsh came in 1931 with two platforms "
        "and three people, and Terrace End in 1964 with two platforms and four people.",
    ),
)

AGENT_RULES = (
    "You are a build agent. In every turn you get the output of the last tool. Say in one or two sentences what it "
    "means, then write the next command on a line of its own that starts with `run:`. Use the exact names and paths "
    "that the tools printed."
)

# What the tools of an agent print, turn by turn; the context grows by each of them and by each answer.
OBSERVATIONS = (
    "Task: the nightly build of the package `tidetable` fails. Find out why and repair it.\n"
    "$ ls -l\n-rw-r--r-- 1 build 1204 pyproject.toml\n-rw-r--r-- 1 build 3310 README.md\n"
    "drwxr-xr-x 5 build 4096 src/tidetable\ndrwxr-xr-x 3 build 4096 tests\n-rwxr-xr-x 1 build 812 nightly.sh",
    "$ ./nightly.sh\ncollected 214 items\ntests/test_harbour.py ............. [ 41%]\n"
    "tests/test_moon.py ....F.F. [ 78%]\ntests/test_table.py ........ [100%]\n"
    "FAILED tests/test_moon.py::test_full_moon_in_leap_year - AssertionError: assert 28.9 == 29.5\n"
    "FAILED tests/test_moon.py::test_new_moon_after_leap_day - AssertionError: assert 13.8 == 14.4\n"
    "2 failed, 212 passed in 8.31s",
    "$ cat src/tidetable/moon.py\nMONTH = 29.530588\nEPOCH = date(2000, 1, 6)\n\n\ndef age(day: date) -> float:\n"
    "    days = (day.year - EPOCH.year) * 365 + day.timetuple().tm_yday - EPOCH.timetuple().tm_yday\n"
    "    return days % MONTH\n",
    "$ git log --oneline -4 src/tidetable/moon.py\n7c1e0aa Compute the age without a date library\n"
    "a94d3b2 Use the epoch of January 2000\n51f0c77 Add the moon's age\n08ab9d4 First version",
    "$ sed -i 's/days = .*/days = (day - EPOCH).days/' src/tidetable/moon.py\n$ git diff --stat\n"
    " src/tidetable/moon.py | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)",
    "$ ./nightly.sh\ncollected 214 items\ntests/test_harbour.py ............. [ 41%]\n"
    "tests/test_moon.py ........ [ 78%]\ntests/test_table.py ........ [100%]\n214 passed in 8.12s",
    "$ git commit -am 'Count leap days in the age of the moon'\n[main 2f8e61d] Count leap days in the age of the moon\n"
    " 1 file changed, 1 insertion(+), 1 deletion(-)\nAll is committed. Sum up what was wrong and what you did.",
)

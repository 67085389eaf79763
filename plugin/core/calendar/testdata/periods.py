"""Writes periods.txt.gz: every start of a period in ten years, for zones, periods and anchors, by Python's zoneinfo.

    python3 periods.py     needs zone data: of the system, or of the package tzdata

It finds where clocks jump by looking at them every 15 minutes, and lists all dates on which a period starts. A line is
a zone, a period, the anchor (month, day, weekday, hour), and the starts in seconds since 1970: the first one, then of
each other the distance to the one before.
"""
import calendar
import datetime as dt
import gzip
import os
import zoneinfo

FROM, UNTIL = 2010, 2020
UTC = dt.timezone.utc
ZONES = """Africa/Cairo Africa/Casablanca America/Asuncion America/Caracas America/Havana America/Santiago
America/Sao_Paulo America/St_Johns Antarctica/Troll Asia/Amman Asia/Beirut Asia/Gaza Asia/Kathmandu Asia/Pyongyang
Asia/Tehran Australia/Lord_Howe Europe/Berlin Europe/Dublin Europe/Istanbul Pacific/Apia Pacific/Chatham UTC""".split()
RULES = [  # period, (month, day, weekday, hour); 0 is the natural start
    ("day", (0, 0, 0, 0)), ("day", (0, 0, 0, 2)), ("week", (0, 0, 0, 0)), ("week", (0, 0, 7, 1)),
    ("month", (0, 0, 0, 0)), ("month", (0, 31, 0, 0)), ("month", (0, 30, 0, 23)),
    ("quarter", (0, 0, 0, 0)), ("quarter", (2, 31, 0, 3)), ("year", (0, 0, 0, 0)), ("year", (2, 29, 0, 0)),
]


def shown(seconds, zone):
    """What a clock of the zone shows, without its offset."""
    return dt.datetime.fromtimestamp(seconds, UTC).astimezone(zone).replace(tzinfo=None, fold=0)


def is_start(date, period, month, day, weekday):
    """Whether a period starts on a date."""
    last = calendar.monthrange(date.year, date.month)[1]
    if period == "day":
        return True
    if period == "week":
        return date.isoweekday() == (weekday or 1)
    if date.day != min(day or 1, last):
        return False
    distance = date.month - (month or 1)
    return period == "month" or distance % (3 if period == "quarter" else 12) == 0


def watch(zone):
    """The stretches in which a zone's clocks run on, by the instants at which they jump: (first, first shown)."""
    start = int(dt.datetime(FROM - 2, 1, 1, tzinfo=UTC).timestamp())
    stretches = [(start, shown(start, zone))]
    for seconds in range(start, start + (UNTIL - FROM + 4) * 366 * 86400, 900):
        first, time = stretches[-1]
        if shown(seconds, zone) - time != dt.timedelta(seconds=seconds - first):
            jump = next(s for s in range(seconds - 899, seconds + 1)
                        if shown(s, zone) - time != dt.timedelta(seconds=s - first))
            stretches.append((jump, shown(jump, zone)))
    return stretches


def first_shown(wanted, stretches):
    """The first instant at which clocks show a time or a later one."""
    for i, (first, time) in enumerate(stretches):
        at = first + max(int((wanted - time).total_seconds()), 0)
        if i + 1 == len(stretches) or at < stretches[i + 1][0]:
            return at


def main():
    lines = []
    for name in ZONES:
        zone = zoneinfo.ZoneInfo(name)
        stretches = watch(zone)
        for period, (month, day, weekday, hour) in RULES:
            starts, date = [], dt.date(FROM, 1, 1)
            while date.year < UNTIL:
                if is_start(date, period, month, day, weekday):
                    at = first_shown(dt.datetime.combine(date, dt.time(hour)), stretches)
                    if not starts or at > starts[-1]:  # a date that a zone skips has no period
                        starts.append(at)
                date += dt.timedelta(days=1)
            steps = [starts[0]] + [b - a for a, b in zip(starts, starts[1:])]
            lines.append(" ".join(map(str, [name, period, month, day, weekday, hour] + steps)))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "periods.txt.gz")
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())


main()

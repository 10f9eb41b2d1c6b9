"""The words that contexts are made of: an invented harbour, its people and what they write down."""

from __future__ import annotations

FIRST_NAMES = (
    "Ada Almut Arvid Beata Bruno Carla Cyril Dagny Edda Emil Farah Felix Greta Hanno Hilde Ivo "
    "Jette Jonas Karim Klara Lars Leona Malte Mira Nadia Nils Odile Oskar Petra Quirin Rana Ruben "
    "Selma Stellan Tilda Tomas Ulla Veit Wanda Yusuf"
).split()
LAST_NAMES = (
    "Abel Ahlgren Bergson Brandt Calder Dorn Ekman Falk Garber Halloran Hoffer Iversen Jansky "
    "Kestrel Kolb Lindqvist Marlow Moreau Nadler Nordin Okafor Ortega Pell Pohl Quist Radek Rowan "
    "Sander Sorel Tarn Thiel Ude Vance Voss Weller Winter Xander Yates Zabel Zorn"
).split()
TOWNS = (
    "Aldersund Brakwater Copperhithe Dunmere Eastholm Fennwick Gullhaven Harrowby Ironquay "
    "Jarrowmouth Kelpness Lowmarsh Mossbury Northsluice Otterbank Pebblecombe Quernford Reedham "
    "Saltcross Tidewell Underclyffe Vellhaven Westerpool Yarlstrand"
).split()
QUALITIES = (
    "amber ashen bronze cedar cobalt copper crimson dusty emerald flint gilded granite hazel "
    "indigo ivory jade linen marble ochre pewter russet scarlet slate velvet"
).split()
THINGS = (
    "anchor barrel beacon bellows bridge cabinet capstan chest clock cradle drum engine ferry "
    "furnace gauge lantern ledger lighthouse locker mill pump safe turbine winch"
).split()
ROOMS = (
    "archive boiler-house chapel cistern coalyard drydock granary kitchen laboratory library "
    "mapstore nursery observatory pantry printery quarry signalbox stable tannery vault workshop"
).split()
LABELS = "harvest illness letter repair theft trade visit weather".split()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

# Sentences of what nobody asks about: who, did what, with what, where or when.
SUBJECTS = (
    "The harbour clerk",
    "A visiting surveyor",
    "The night watch",
    "An apprentice",
    "The pilot's daughter",
    "The older of the two masons",
    "A crew from upriver",
    "The weigh-house keeper",
    "One of the net makers",
    "The schoolmistress",
    "The rope merchant",
    "A retired captain",
)
VERBS = (
    "counted",
    "set down",
    "asked about",
    "paid for",
    "argued over",
    "repainted",
    "carried off",
    "sent back",
    "measured",
    "covered up",
    "made a sketch of",
    "forgot",
)
OBJECTS = (
    "nine crates of lamp oil",
    "the broken railing",
    "a stack of unsigned receipts",
    "the last barrels of tar",
    "a length of chain",
    "the new mooring posts",
    "forty sacks of meal",
    "a pair of oars",
    "the cracked bell",
    "two bolts of sailcloth",
    "the wooden stairs",
    "an empty cart",
)
CIRCUMSTANCES = (
    "before the tide turned",
    "beside the north gate",
    "while it rained",
    "without a word to anyone",
    "for the third time that week",
    "behind the customs shed",
    "as the lamps were lit",
    "on the way to market",
    "under the arches",
    "to the surprise of all",
    "at the end of the pier",
    "in spite of the cold",
)

"""Make ``speech_digits.npz``: ten spoken digits in 50 synthetic voices, as log-mel pictures.

    python data/make_speech.py espeak-ng

The source is the program espeak-ng (data/README.md tells which version and how to get it), a
speech synthesiser: no person speaks here. This script

* lets it say "zero" to "nine" in every voice below, four times each, at different speeds and
  pitches;
* puts each word at a random place in 0.87 seconds of pink noise;
* turns the sound into a picture of 24 frames (time) by 20 mel bands (pitch), loudness in decibels,
  stored as uint8.

The ten test voices are never heard in training. The same version of espeak-ng gives the same bytes
each time: random numbers come from fixed seeds, one for each clip; nothing in the file is
compressed, and its dates are fixed.
"""

import io
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
from make_minilm_layer0 import write_npz

TARGET = Path(__file__).resolve().parent / "speech_digits.npz"
VERSION = "1.51"  # of espeak-ng; others speak a little differently
SEED = 2026

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TAKES = 4  # how often each voice says each word
SPEED = (130, 210)  # words a minute
PITCH = (25, 75)  # espeak-ng's own scale from 0 to 99
NOISE = (0, 20)  # signal-to-noise ratio in dB: 0 is as loud as the word, 20 is a hundredth of it

RATE = 22_050  # samples a second, as espeak-ng gives them
WINDOW, HOP = 1024, 794  # samples in a frame (46 ms), and from one frame to the next (36 ms)
FRAMES, BANDS = 24, 20
LOWEST, HIGHEST = 80, 8000  # Hz, the range of the mel bands
DYNAMIC_RANGE = 50  # dB below the loudest point of a picture that are kept

# A voice is an accent and a variant; a variant has its own throat (formants) and pitch. Every
# variant is used once. Sets with almost the same numbers (belinda and linda, m7 and m8) are on one
# side of the split, but espeak-ng's variants are relatives: f1 (test) is close to f2 (training).
ACCENTS = [
    "en-gb",
    "en-us",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-us-nyc",
    "en-029",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
]
TRAIN_VARIANTS = [
    *["Alex", "Alicia", "Andrea", "Andy", "anika", "announcer", "antonio", "aunty", "belinda", "boris"],
    *["croak", "david", "Denis", "Diogo", "edward", "f2", "f3", "f4", "f5", "Gene"],
    *["grandpa", "iven", "Jacky", "klatt2", "linda", "m1", "m4", "m5", "m6", "m7"],
    *["m8", "max", "Michael", "Mike", "pedro", "robert", "travis", "victor", "whisperf", "zac"],
]
TEST_VARIANTS = ["Annie", "benjamin", "ed", "f1", "grandma", "m2", "paul", "sandro", "shelby", "steph"]


def voice_names():
    """-> the 40 training voices, then the 10 test voices; the accents take turns in both."""
    return [
        f"{ACCENTS[number % len(ACCENTS)]}+{variant}"
        for variants in (TRAIN_VARIANTS, TEST_VARIANTS)
        for number, variant in enumerate(variants)
    ]


# ---------------------------------------------------------------- sound


def say(espeak, word, voice, speed, pitch):
    """-> the word as sound, float64 (samples,), without the silence around it."""
    command = [espeak, "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    spoken = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        sound = np.frombuffer(file.readframes(len(spoken)), dtype="<i2").astype(np.float64)
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1]


def pink_noise(length, rng):
    """-> (length,) noise of power 1, with equal power in every octave, as in wind or traffic."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[0] = 0
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    noise = np.fft.irfft(spectrum, length)
    return noise / np.sqrt((noise**2).mean())


def record(espeak, digit, voice, rng):
    """One clip: a digit in a voice, somewhere in noise -> (samples,)."""
    speed, pitch = rng.integers(*SPEED, endpoint=True), rng.integers(*PITCH, endpoint=True)
    word = say(espeak, WORDS[digit], voice, speed, pitch)
    length = (FRAMES - 1) * HOP + WINDOW
    start = rng.integers(0, length - len(word), endpoint=True)
    noise_power = (word**2).mean() / 10 ** (rng.uniform(*NOISE) / 10)
    clip = pink_noise(length, rng) * np.sqrt(noise_power)
    clip[start : start + len(word)] += word
    return clip


# ---------------------------------------------------------------- the log-mel picture


def hertz_to_mel(hertz):
    """The mel scale, on which equal steps sound equally large (O'Shaughnessy's formula)."""
    return 2595 * np.log10(1 + hertz / 700)


def mel_to_hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)


def mel_filters():
    """-> (WINDOW // 2 + 1, BANDS): a triangle for each band, equally wide on the mel scale."""
    edges = mel_to_hertz(np.linspace(hertz_to_mel(LOWEST), hertz_to_mel(HIGHEST), BANDS + 2))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    hertz = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising, falling = (hertz - low) / (centre - low), (high - hertz) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling))


def log_mel(clip):
    """(samples,) -> (FRAMES, BANDS) uint8: 255 is the loudest point, 0 is 50 dB or more below."""
    starts = HOP * np.arange(FRAMES)
    frames = clip[starts[:, None] + np.arange(WINDOW)] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    decibels = 10 * np.log10(power @ mel_filters() + 1e-9)
    below = decibels - decibels.max()
    return np.rint(255 * np.maximum(0, 1 + below / DYNAMIC_RANGE)).astype(np.uint8)


# ---------------------------------------------------------------- all of them


def check_version(espeak):
    found = subprocess.run([espeak, "--version"], check=True, capture_output=True, text=True).stdout
    if f" {VERSION} " not in found:
        sys.exit(f"needs espeak-ng {VERSION}, found: {found.strip()}")


def make(espeak, target=TARGET):
    check_version(espeak)
    voices = voice_names()
    clips = [(v, d, t) for v in range(len(voices)) for d in range(len(WORDS)) for t in range(TAKES)]
    mel = np.empty((len(clips), FRAMES, BANDS), dtype=np.uint8)
    for row, (voice, digit, take) in enumerate(clips):
        rng = np.random.default_rng([SEED, voice, digit, take])
        mel[row] = log_mel(record(espeak, digit, voices[voice], rng))
    voice, label, _ = np.array(clips, dtype=np.uint8).T
    about = f"Digits spoken by espeak-ng {VERSION}, synthetic voices: see README.md beside this file."
    out = {
        "about": np.array(about, dtype="S"),
        "words": np.array(WORDS, dtype="S"),
        "voices": np.array(voices, dtype="S"),
        "mel": mel,
        "label": label,
        "voice": voice,
        "is_test": voice >= len(TRAIN_VARIANTS),
    }
    write_npz(target, out)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_speech.py ESPEAK_NG [TARGET]")
    make(*sys.argv[1:])

"""Text: a small GPT and an LSTM that predict the next character."""

from elbowroom.science.language.models import GPT as GPT
from elbowroom.science.language.models import LSTM as LSTM
from elbowroom.science.language.models import gpt_mini as gpt_mini
from elbowroom.science.language.training import Characters as Characters

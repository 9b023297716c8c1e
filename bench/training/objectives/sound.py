"""Sound in a batch: a waveform, or features of its frequencies, as the architecture takes it."""

from __future__ import annotations

from collections.abc import Mapping

from bench.training.objectives.objective import Architecture, Part, SampleSize

SAMPLES_A_SECOND = 16_000  # of waveforms, the rate of the feature extractors of all these models
FRAMES_A_SECOND = 100  # of features: a frame every 10 ms
# The fields below, of the types of transformers whose configurations have them.
FORMS: Mapping[str, Mapping[str, int]] = {
    "audio-spectrogram-transformer": {"num_mel_bins": 128, "max_length": 1024},
    "seamless_m4t": {"feature_projection_input_dim": 160},
    "seamless_m4t_v2": {"feature_projection_input_dim": 160},
    "speech_to_text": {"input_feat_per_channel": 80},
    "wav2vec2-bert": {"feature_projection_input_dim": 160},
    "whisper": {"num_mel_bins": 80, "max_source_positions": 1500},
}


def sound_part(architecture: Architecture, size: SampleSize) -> Part:
    """Return the part of a batch that holds sound, by the fields with which an architecture states its form.

    An architecture without these fields takes waveforms, because its type has none (FORMS).
    """
    seconds = size.audio_seconds or 1
    frames = seconds * FRAMES_A_SECOND
    match architecture:
        case {"num_mel_bins": int(bins), "max_source_positions": int()}:  # Whisper
            return Part("input_features", (bins, frames), "numbers")
        case {"num_mel_bins": int(bins), "max_length": int(length)}:  # Audio Spectrogram Transformer, padded
            return Part("input_values", (length, bins), "numbers")
        case {"input_feat_per_channel": int(bins)}:  # Speech2Text
            return Part("input_features", (frames, bins), "numbers")
        case {"feature_projection_input_dim": int(bins)}:  # Wav2Vec2-BERT and SeamlessM4T join two frames
            return Part("input_features", (frames // 2, bins), "numbers")
        case _:
            return Part("input_values", (seconds * SAMPLES_A_SECOND,), "numbers")

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tokenizer as GGUF files keep it.

#include "tessera/zoo/gguf/gguf_writer.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>

namespace tessera::zoo {

/// The entries "tokenizer.ggml.*" from a folder's tokenizer.json and
/// tokenizer_config.json: byte-level BPE (GPT-2, LLaMA 3, Qwen) and BPE with
/// byte fallback (LLaMA 1 and 2). Without a tokenizer.json, or with no folder,
/// the file says that it has none.
/// @param config of the model, for ids of special tokens.
/// @param vocab_size rows of the embedding; ids without a token get a filler.
/// @throws tessera::Error naming the file, on a kind or a rule for splitting
///     text that is not known here.
GgufMetadata gguf_tokenizer(
    const std::filesystem::path& folder,
    const nlohmann::json& config,
    int64_t vocab_size);

} // namespace tessera::zoo

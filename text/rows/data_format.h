// SPDX-License-Identifier: Apache-2.0
#pragma once
// data_format_of() recognizes common file formats, so that messages can say
// what a data file is and how to convert it.

#include <filesystem>
#include <string>

namespace tessera::text {

enum class DataFormat {
  kUnknown,
  kText, ///< UTF-8 without control characters
  kNumpy,
  kLlmC, ///< the token files of llm.c, which have a header
  kSafetensors,
  kGzip,
  kZstandard,
  kZip, ///< also the files of torch.save() and numpy.savez()
  kParquet,
  kArrow,
  kHdf5,
};

/// Recognizes a file by its first bytes. Files of less than 64 bytes are not
/// taken for text, because a few token ids may look like it. kUnknown if the
/// file cannot be read.
DataFormat data_format_of(const std::filesystem::path& path);

/// Whether a file is text by its content or its suffix (.txt, .jsonl, .csv,
/// ...).
bool is_text_file(const std::filesystem::path& path);

/// "a NumPy array", for messages.
const char* name_of(DataFormat format);

/// The path as one word of a shell command.
std::string shell_word(const std::filesystem::path& path);

/// A shell command that unpacks a compressed file; empty for other formats.
std::string unpack_command(
    DataFormat format,
    const std::filesystem::path& path);

} // namespace tessera::text

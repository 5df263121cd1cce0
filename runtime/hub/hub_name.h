// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HubName` is a model or data set on the Hugging Face Hub, or files of it, as
// written in configurations and on command lines.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// "hf://org/name@revision/path" and "hf://datasets/org/name@revision/path".
struct HubName {
  bool is_data_set = false;
  std::string repository; ///< "org/name"; a few old models have no "org/"
  std::string revision = "main"; ///< a branch, a tag or a commit
  /// A file or folder in the repository; empty: all of it.
  std::string path;

  /// As parse_hub_name() reads it.
  std::string text() const;
};

/// Whether it begins with "hf://".
bool is_hub_name(std::string_view text);

/// @param text "hf://" and a repository, then optionally "@" and a revision, in
///     which a slash is written "%2F", and "/" with a path.
/// @throws tessera::Error naming the part that is wrong.
HubName parse_hub_name(std::string_view text);

/// "org/name" as a model; nothing for other texts, such as paths that begin
/// with a dot or have several slashes.
std::optional<HubName> hub_name_of_model(std::string_view text);

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HubListing` is what a repository on the Hub has at a revision, and
// model_files() what of it a model is made of.

#include "tessera/runtime/hub/content_hash.h"
#include "tessera/runtime/hub/hub_name.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

struct HubFile {
  std::string path; ///< in the repository
  int64_t bytes = 0;
  std::string hash; ///< names its content in the cache
  ContentHash kind = ContentHash::kGitBlob;
};

struct HubListing {
  std::string commit;
  std::vector<HubFile> files;
};

/// Whether it is a commit's whole name: 40 hexadecimal digits.
bool is_commit(std::string_view revision);

/// The Hub's answer to a request for a revision with its blobs.
/// @param place begins errors.
/// @throws tessera::Error if it is something else, or names a path outside the
///     repository.
HubListing read_listing(std::string_view json, const std::string& place);

/// The Hub's address of that answer.
std::string listing_url(const std::string& endpoint, const HubName& name);

/// The address of a file.
std::string file_url(
    const std::string& endpoint,
    const HubName& name,
    const std::string& commit,
    const std::string& path);

/// Which of the files a model or an adapter is loaded from: configuration,
/// tokenizer, chat templates, and one set of weights (the first there is of
/// safetensors and PyTorch's files). Not: weights in other formats, programs,
/// pictures, and what is in other folders.
/// @param folder of the repository; empty: its root.
/// @param weights whether those are wanted.
std::vector<HubFile> model_files(
    const HubListing& listing,
    const std::string& folder,
    bool weights = true);

} // namespace tessera::runtime

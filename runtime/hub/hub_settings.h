// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HubSettings` says where the Hub is, where its files are kept here, and who
// asks: the environment variables of huggingface_hub.

#include <chrono>
#include <filesystem>
#include <string>

namespace tessera::runtime {

struct HubSettings {
  std::string endpoint = "https://huggingface.co"; ///< without a last slash
  /// Where files are kept, in the layout of huggingface_hub: what it has
  /// fetched is found, and it finds what is fetched here.
  std::filesystem::path cache;
  std::string token; ///< empty: none
  bool is_offline = false; ///< takes what the cache has
  int files_at_once = 4;
  int attempts = 6; ///< of each request; a file goes on where it stopped
  /// Before the second attempt; doubles from one to the next.
  std::chrono::milliseconds pause = std::chrono::seconds(1);
  std::chrono::seconds connect_timeout = std::chrono::seconds(10);
  /// A transfer without a byte for so long is attempted again.
  std::chrono::seconds stall_timeout = std::chrono::seconds(30);

  /// HF_ENDPOINT; HF_HUB_CACHE, else HF_HOME/hub, else
  /// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub; HF_TOKEN,
  /// else the file HF_TOKEN_PATH, else HF_HOME/token, unless
  /// HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE;
  /// HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT, in seconds.
  /// @throws tessera::Error naming a variable whose value makes no sense.
  static HubSettings from_environment();
};

} // namespace tessera::runtime

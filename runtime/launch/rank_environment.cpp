// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/rank_environment.h"

#include "tessera/runtime/core/cpu_quota.h"
#include "tessera/runtime/core/peer_failure.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

namespace tessera::runtime {

std::vector<std::string> rank_environment(const RankPlace& place) {
  const std::string rank = std::to_string(place.rank);
  const std::string world_size = std::to_string(place.world_size);
  std::map<std::string, std::string, std::less<>> changes{
      {"RANK", rank},
      {"LOCAL_RANK", rank},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", world_size},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(place.port)},
      // If inherited from an outer torchrun, this would tell rank 0 that the
      // agent has opened the store.
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
      {"TESSERA_TERMINAL_COLUMNS", ""},
      {kLauncherSocketVariable, place.blame_socket},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    changes["OMP_NUM_THREADS"] =
        std::to_string(std::max(1, usable_cpus() / place.world_size));
  }
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    // c10d's warnings about lost peers are stack traces; the rank that left
    // has said why.
    changes["TORCH_CPP_LOG_LEVEL"] = "ERROR";
  }
  if (place.terminal_columns > 0) {
    changes["TESSERA_TERMINAL_COLUMNS"] =
        std::to_string(place.terminal_columns);
  }

  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) {
      environment.emplace_back(text);
    }
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) {
      environment.push_back(name);
      environment.back().append("=").append(value);
    }
  }
  return environment;
}

} // namespace tessera::runtime

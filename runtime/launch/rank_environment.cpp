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
  std::map<std::string, std::string, std::less<>> changes{
      {"RANK", std::to_string(place.rank)},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"GROUP_RANK", std::to_string(place.node_rank)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.port)},
      // If inherited from an outer torchrun, this would tell rank 0 that the
      // agent has opened the store.
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
      {"TORCHELASTIC_RESTART_COUNT", ""},
      {"TORCHELASTIC_MAX_RESTARTS", ""},
      {"TESSERA_TERMINAL_COLUMNS", ""},
      {kLauncherSocketVariable, place.blame_socket},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    changes["OMP_NUM_THREADS"] =
        std::to_string(std::max(1, usable_cpus() / place.local_world_size));
  }
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    // c10d's warnings about lost peers are stack traces; the rank that left
    // has said why.
    changes["TORCH_CPP_LOG_LEVEL"] = "ERROR";
  }
  if (place.max_restarts > 0) {
    changes["TORCHELASTIC_RESTART_COUNT"] = std::to_string(place.restarts);
    changes["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(place.max_restarts);
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

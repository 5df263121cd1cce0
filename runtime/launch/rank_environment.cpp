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

std::vector<std::pair<std::string, std::string>> default_settings() {
  const auto is_set = [](const char* name) {
    return std::getenv(name) != nullptr;
  };
  std::vector<std::pair<std::string, std::string>> settings;
  // c10d's warnings about lost peers are stack traces; errors are reported.
  if (!is_set("TORCH_CPP_LOG_LEVEL")) {
    settings.emplace_back("TORCH_CPP_LOG_LEVEL", "ERROR");
  }
  // libgomp's threads spin while they wait for each other, which on a machine
  // that has other work takes the processor from the thread that is waited
  // for: 60 steps of a small GPT on two busy cores took over 200 s with its
  // default (300000 rounds), 58 s with 10000, 4 s with 1000 and 3 s without
  // (OMP_WAIT_POLICY=passive). At high priority, 200 steps took 17 to 22 s with
  // 1000 and 25 s without: some rounds bridge the time between two operators.
  // libgomp itself takes 1000 where it knows of more threads than processors.
  if (!is_set("GOMP_SPINCOUNT") && !is_set("OMP_WAIT_POLICY")) {
    settings.emplace_back("GOMP_SPINCOUNT", "1000");
  }
  return settings;
}

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
  for (const auto& [name, value] : default_settings()) {
    changes[name] = value;
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

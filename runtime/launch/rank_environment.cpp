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
  // for. Steps of a small GPT on two cores, in tokens/s: on a busy machine 5300
  // passive, 3900 with GOMP_SPINCOUNT=1000, 260 with 10000, fewer than 80 by
  // default; while it became busy 10100, 7700, 1800 and under 900. On a machine
  // with no other work passive costs 7 % of a step (9700 instead of 10500).
  if (!is_set("OMP_WAIT_POLICY") && !is_set("GOMP_SPINCOUNT")) {
    settings.emplace_back("OMP_WAIT_POLICY", "passive");
  }
  return settings;
}

std::vector<std::string> rank_environment(const RankVariables& variables) {
  std::map<std::string, std::string, std::less<>> changes{
      {"RANK", std::to_string(variables.rank)},
      {"LOCAL_RANK", std::to_string(variables.local_rank)},
      {"WORLD_SIZE", std::to_string(variables.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(variables.local_world_size)},
      {"GROUP_RANK", std::to_string(variables.node_rank)},
      {"MASTER_ADDR", variables.master_addr},
      {"MASTER_PORT", std::to_string(variables.port)},
      // If inherited from an outer torchrun, this would tell rank 0 that the
      // agent has opened the store.
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
      {"TORCHELASTIC_RESTART_COUNT", ""},
      {"TORCHELASTIC_MAX_RESTARTS", ""},
      {"TESSERA_TERMINAL_COLUMNS", ""},
      {kLauncherSocketVariable, variables.failure_socket},
  };
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    changes["OMP_NUM_THREADS"] =
        std::to_string(std::max(1, usable_cpus() / variables.local_world_size));
  }
  for (const auto& [name, value] : default_settings()) {
    changes[name] = value;
  }
  if (variables.max_restarts > 0) {
    changes["TORCHELASTIC_RESTART_COUNT"] = std::to_string(variables.restarts);
    changes["TORCHELASTIC_MAX_RESTARTS"] =
        std::to_string(variables.max_restarts);
  }
  if (variables.terminal_columns > 0) {
    changes["TESSERA_TERMINAL_COLUMNS"] =
        std::to_string(variables.terminal_columns);
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

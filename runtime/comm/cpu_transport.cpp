// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/cpu_transport.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/host_identity.h"
#include "tessera/runtime/comm/shm_backend.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <string>
#include <vector>

namespace tessera::runtime {

namespace {

constexpr const char* kVariable = "TESSERA_TRANSPORT";

struct Statement {
  std::string transport;
  std::string host;
};

/// The statements of all ranks on rank 0; empty elsewhere.
std::vector<Statement> gather_statements(
    c10d::Store& store,
    const Statement& self_statement,
    int rank,
    int size) {
  const auto key = [](int r) { return "transport/" + std::to_string(r); };
  if (rank != 0) {
    store.set(
        key(rank),
        to_bytes(self_statement.transport + " " + self_statement.host));
    return {};
  }
  std::vector<Statement> all{self_statement};
  for (int r = 1; r < size; ++r) {
    const std::string text = to_text(store.get(key(r)));
    const size_t space = text.find(' ');
    all.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return all;
}

/// The name of the host in the result of host_identity().
std::string host_name(const std::string& identity) {
  return identity.substr(0, identity.find(' '));
}

/// Returns "shm", "gloo", or "error " and the reason. Warns of ranks on one
/// host that cannot share memory.
std::string judge(const std::vector<Statement>& all) {
  const std::string& wanted = all[0].transport;
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].transport != wanted) {
      return formatted(
          "error {} is '{}' on rank 0 and '{}' on rank {}; set the same value on all ranks",
          kVariable,
          wanted,
          all[r].transport,
          r);
    }
    if (wanted == "shm" && all[r].host != all[0].host) {
      return formatted(
          "error {} is 'shm', but rank 0 runs on {} and rank {} on {}; unset it, or run all ranks on one host as the same user",
          kVariable,
          all[0].host,
          r,
          all[r].host);
    }
    if (all[r].host != all[0].host) {
      if (wanted == "auto" &&
          host_name(all[r].host) == host_name(all[0].host)) {
        log_warning(
            "ranks on this host communicate over TCP, which is slower than shared memory: rank 0 is {}, rank {} is {}; run them as the same user in the same PID namespace",
            all[0].host,
            r,
            all[r].host);
      }
      return "gloo";
    }
  }
  return wanted == "gloo" ? "gloo" : "shm";
}

} // namespace

std::string wanted_transport() {
  const char* value = std::getenv(kVariable);
  const std::string wanted = value ? value : "auto";
  TESSERA_CHECK(
      wanted == "auto" || wanted == "shm" || wanted == "gloo",
      "the environment variable {} is '{}'; it must be 'auto', 'shm' or 'gloo'",
      kVariable,
      wanted);
  return wanted;
}

c10::intrusive_ptr<c10d::Backend> make_cpu_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout) {
  const std::string wanted = wanted_transport();
  const auto statements =
      gather_statements(*store, {wanted, host_identity()}, rank, size);
  if (rank == 0) {
    store->set("transport", to_bytes(judge(statements)));
  }
  const std::string chosen = to_text(store->get("transport"));
  const std::string error = "error ";
  TESSERA_CHECK(
      chosen.rfind(error, 0) != 0, "{}.", chosen.substr(error.size()));
  if (chosen == "shm") {
    const auto local_keys =
        c10::make_intrusive<c10d::PrefixStore>("shm", store);
    try {
      return c10::make_intrusive<ShmBackend>(
          local_keys, rank, size, ShmOptions{timeout});
    } catch (const LostRankError&) {
      throw;
    } catch (const Error& reason) {
      // The same on all ranks.
      TESSERA_CHECK(
          wanted == "auto",
          "{} is 'shm', but the ranks cannot share memory: {}",
          kVariable,
          reason.what());
      if (rank == 0) {
        log_warning(
            "ranks on this host communicate over TCP, which is slower than shared memory: {}",
            reason.what());
      }
    }
  }
  return make_gloo_backend(store, rank, size, timeout);
}

} // namespace tessera::runtime

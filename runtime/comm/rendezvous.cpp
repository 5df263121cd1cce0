// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/rendezvous.h"

#include "tessera/runtime/comm/missing_ranks.h"
#include "tessera/runtime/comm/rank_ends.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/peer_failure.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace tessera::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollInterval{20};

std::chrono::seconds truncated_seconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration);
}

/// Where the store is.
struct StoreAddress {
  std::string host;
  int port = 0;
  /// Whether this process hosts it.
  bool is_here = false;

  std::string text() const {
    return host + ":" + std::to_string(port);
  }
};

StoreAddress store_address(int rank) {
  const char* host = std::getenv("MASTER_ADDR");
  TESSERA_CHECK(
      host != nullptr,
      "the environment variable MASTER_ADDR is not set although RANK is. Set it to the host name of rank 0, or start with `tessera launch`.");
  // Under torchrun's elastic agent, the agent hosts the store and rank 0 joins
  // like any other rank.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_holds_store = agent && std::strcmp(agent, "True") == 0;
  return {
      host,
      environment_int("MASTER_PORT", 1, 65535),
      rank == 0 && !agent_holds_store};
}

/// Why the name cannot be resolved; empty if it can.
std::string why_unknown(const std::string& host) {
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (error != 0) {
    return ::gai_strerror(error);
  }
  ::freeaddrinfo(found);
  return {};
}

/// Opens the store, in attempts short enough to log what this rank waits for.
c10::intrusive_ptr<c10d::Store> open_store(
    const StoreAddress& address,
    int size,
    std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = address.is_here;
  options.numWorkers = size;
  options.waitWorkers = false;
  // torch.distributed in the same process may open it too.
  options.multiTenant = true;
  const auto start = Clock::now();
  while (true) {
    const auto attempt = Clock::now();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        start + timeout - attempt);
    options.timeout = std::clamp<std::chrono::milliseconds>(
        left, kPollInterval, kWaitNoticeInterval);
    const std::string unknown = why_unknown(address.host);
    if (unknown.empty()) {
      try {
        auto store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
        store->setTimeout(timeout);
        return store;
      } catch (const c10::Error& error) {
        TESSERA_CHECK(
            !address.is_here,
            "rank 0 cannot open port {} (MASTER_PORT): {}. Choose another port.",
            address.port,
            error.what_without_backtrace());
        TESSERA_CHECK(
            Clock::now() < start + timeout,
            "rank 0 could not be reached at {} (MASTER_ADDR, MASTER_PORT) within {} s. Start rank 0, check that this host can reach the address, and that no firewall closes the port.",
            address.text(),
            truncated_seconds(timeout).count());
      }
    } else {
      // Names may appear late on clusters, but not that of this host.
      TESSERA_CHECK(
          Clock::now() < start + timeout &&
              !(address.is_here && attempt - start >= kWaitNoticeInterval),
          "MASTER_ADDR is '{}', which this host cannot resolve: {}. Set it to the name or address of the host of rank 0.",
          address.host,
          unknown);
    }
    std::this_thread::sleep_until(
        std::min(attempt + kWaitNoticeInterval, start + timeout));
    log_warning(
        "waiting for rank 0 at {} (MASTER_ADDR, MASTER_PORT) for {} s{}",
        address.text(),
        truncated_seconds(Clock::now() - start).count(),
        unknown.empty() ? ""
                        : "; this host cannot resolve the name: " + unknown);
  }
}

constexpr const char* kAllJoined = "joined/all";

/// Rank 0: waits for the notes of all ranks.
void wait_for_others(
    c10d::Store& store,
    int size,
    std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  auto next_notice = Clock::duration(kWaitNoticeInterval);
  std::vector<int> missing(static_cast<size_t>(size - 1));
  std::iota(missing.begin(), missing.end(), 1);
  while (true) {
    std::erase_if(missing, [&](int rank) {
      return store.check({RankEnds::process_key(rank)});
    });
    if (missing.empty()) {
      store.set(kAllJoined, to_bytes("1"));
      return;
    }
    const auto waited = Clock::now() - start;
    TESSERA_CHECK(
        waited < timeout,
        "{} of {} did not join the job within {} s. Start one process per rank, with the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT.",
        ranks_text(missing),
        size,
        truncated_seconds(waited).count());
    if (waited >= next_notice) {
      next_notice += kWaitNoticeInterval;
      log_warning(
          "waiting for {} of {} to join the job for {} s",
          ranks_text(missing),
          size,
          truncated_seconds(waited).count());
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

/// Waits until rank 0 has seen all ranks; rank 0 says who is missing. Where an
/// agent hosts the store, it may be rank 0 itself.
void wait_for_rank_0(
    c10d::Store& store,
    int size,
    std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  auto next_notice = Clock::duration(kWaitNoticeInterval);
  try {
    while (!store.check({kAllJoined})) {
      const auto waited = Clock::now() - start;
      TESSERA_CHECK(
          waited < timeout + kWaitNoticeInterval,
          "not all {} ranks joined the job in time; see rank 0.",
          size);
      if (waited >= next_notice) {
        next_notice += kWaitNoticeInterval;
        if (!store.check({RankEnds::process_key(0)})) {
          log_warning(
              "waiting for rank 0 of {} to join the job for {} s",
              size,
              truncated_seconds(waited).count());
        }
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  } catch (const c10::Error&) {
    blame_peer();
    TESSERA_FAIL(
        "rank 0 left before all {} ranks had joined the job; see its error.",
        size);
  }
}

} // namespace

int environment_int(const char* name, int low, int high) {
  const char* text = std::getenv(name);
  TESSERA_CHECK(
      text != nullptr,
      "the environment variable {} is not set; a distributed job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Start the program with `tessera launch` or torchrun, or unset RANK and WORLD_SIZE to run as one process.",
      name);
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, value);
  TESSERA_CHECK(
      code == std::errc{} && stop == end && value >= low && value <= high,
      "the environment variable {} is '{}'; expected an integer from {} to {}.",
      name,
      text,
      low,
      high);
  return value;
}

c10::intrusive_ptr<c10d::Store> join_store(
    int rank,
    int size,
    std::chrono::milliseconds timeout) {
  const StoreAddress address = store_address(rank);
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      std::string("tessera/") + (restarts ? restarts : "0"),
      open_store(address, size, timeout));
  store->set(RankEnds::process_key(rank), to_bytes(process_note()));
  if (rank == 0) {
    wait_for_others(*store, size, timeout);
  } else {
    wait_for_rank_0(*store, size, timeout);
  }
  return store;
}

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_meeting.h"

#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/comm/group_store.h"
#include "tessera/runtime/comm/store_text.h"
#include "tessera/runtime/core/error.h"

#include <exception>
#include <optional>
#include <utility>

namespace tessera::runtime {

namespace {

constexpr const char* kGood = "good";

} // namespace

void all_succeed(
    c10d::Store& store,
    const std::string& key,
    int rank,
    int size,
    const std::function<void()>& step) {
  std::string self_text = kGood;
  try {
    step();
  } catch (const LostRankError&) {
    throw; // the others know, or will see it themselves
  } catch (const std::exception& error) {
    // Of any kind: the others wait for this rank's answer.
    const auto number = job_ranks(store, size).at(static_cast<size_t>(rank));
    self_text = formatted("rank {}: {}", number, text_of_exception(error));
  }
  const auto key_of = [&](int r) { return key + "/" + std::to_string(r); };
  std::string all = self_text;
  if (rank == 0) {
    for (int r = 1; r < size; ++r) {
      const std::string peer_text = to_text(store.get(key_of(r)));
      if (all == kGood && peer_text != kGood) {
        all = peer_text;
      }
    }
    store.set(key, to_bytes(all));
  } else {
    store.set(key_of(rank), to_bytes(self_text));
    all = to_text(store.get(key));
  }
  TESSERA_CHECK(all == kGood, "{}", all);
}

ShmRegion meet(c10d::Store& store, int rank, int size) {
  std::optional<ShmRegion> region;
  all_succeed(store, "attached", rank, size, [&] {
    if (rank == 0) {
      try {
        region.emplace(ShmRegion::create(size));
      } catch (const std::exception&) {
        store.set("region", to_bytes(""));
        throw;
      }
      store.set("region", to_bytes(region->address()));
    } else {
      const std::string address = to_text(store.get("region"));
      TESSERA_CHECK(!address.empty(), "rank 0 has no shared memory");
      region.emplace(ShmRegion::attach(address, size));
    }
  });
  return std::move(*region);
}

} // namespace tessera::runtime

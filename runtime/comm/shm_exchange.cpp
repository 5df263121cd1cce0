// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_exchange.h"

#include "tessera/runtime/comm/shm_bytes.h"
#include "tessera/runtime/core/error.h"

#include <cstring>
#include <utility>

namespace tessera::runtime {

/// The header of a row.
struct ShmExchange::Header {
  int64_t bytes = 0; ///< of the whole block
  uint64_t address = 0; ///< in the sender's memory
};

ShmExchange::ShmExchange(
    const ShmPort& port,
    const at::Tensor& out,
    const at::Tensor& in,
    Blocks blocks)
    : ShmOperation(
          port,
          CollectiveKind::kExchange,
          out.scalar_type(),
          /*total_bytes=*/0, // differs between ranks; rows have their own
          blocks.longest_bytes,
          /*rows=*/port.ranks,
          /*shows_results=*/false,
          /*header_bytes=*/kShmLine),
      out_(out),
      in_(in),
      blocks_(std::move(blocks)),
      row_bytes_(port.region.slot_bytes() / port.ranks / kShmLine * kShmLine) {
  static_assert(sizeof(Header) <= kShmLine);
  TESSERA_CHECK(
      row_bytes_ > kShmLine,
      "an all-to-all over shared memory has too little space for {} ranks; set TESSERA_TRANSPORT=gloo",
      port.ranks);
}

int64_t ShmExchange::always_direct(const ShmPort& port) {
  return port.region.slot_bytes() + 1;
}

std::byte* ShmExchange::row(
    const ShmPort& port,
    int from,
    int to,
    uint64_t turn) const {
  return port.region.payload(from, turn) + to * row_bytes_;
}

void ShmExchange::publish(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  announce(port, turn, nullptr);
  for (int r = 0; r < port.ranks; ++r) {
    if (r == port.rank) {
      continue;
    }
    const ByteSpan& block = blocks_.in[static_cast<size_t>(r)];
    const std::byte* begin = bytes_of(in_) + block.begin;
    const Header header{block.bytes(), reinterpret_cast<uint64_t>(begin)};
    std::byte* to = row(port, port.rank, r, turn);
    std::memcpy(to, &header, sizeof(header));
    if (!direct()) {
      const ByteSpan span = part(block, chunk);
      copy_bytes(to + kShmLine, bytes_of(in_) + span.begin, span.bytes());
    }
  }
}

void ShmExchange::consume(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  check_peers(port, turn);
  for (int i = 0; i < port.ranks; ++i) {
    // Each rank begins with itself, so that not all ranks read the same memory
    // at once.
    const int r = (port.rank + i) % port.ranks;
    const ByteSpan& block = blocks_.out[static_cast<size_t>(r)];
    if (r == port.rank) {
      const ByteSpan& local = blocks_.in[static_cast<size_t>(r)];
      copy_bytes(
          bytes_of(out_) + block.begin,
          bytes_of(in_) + local.begin,
          chunk == 0 ? local.bytes() : 0);
      continue;
    }
    const std::byte* from = row(port, r, port.rank, turn);
    Header header;
    std::memcpy(&header, from, sizeof(header));
    TESSERA_CHECK(
        header.bytes == block.bytes(),
        "the ranks disagree about an all-to-all: rank {} sends {} bytes to rank {}, which expects {}",
        port.in_job(r),
        header.bytes,
        port.in_job(port.rank),
        block.bytes());
    if (direct()) {
      port.peers.read(
          r, header.address, bytes_of(out_) + block.begin, block.bytes());
    } else {
      const ByteSpan span = part(block, chunk);
      copy_bytes(bytes_of(out_) + span.begin, from + kShmLine, span.bytes());
    }
  }
}

} // namespace tessera::runtime

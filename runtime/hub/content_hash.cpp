// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/content_hash.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/unique_fd.h"
#include "tessera/runtime/io/posix_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <vector>

namespace tessera::runtime {

namespace {

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const {
    EVP_MD_CTX_free(context);
  }
};

class Digest {
 public:
  explicit Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new()) {
    check(context_ ? EVP_DigestInit_ex(context_.get(), kind, nullptr) : 0);
  }
  void add(const void* data, size_t bytes) {
    check(EVP_DigestUpdate(context_.get(), data, bytes));
  }
  std::string finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
    unsigned int count = 0;
    check(EVP_DigestFinal_ex(context_.get(), bytes.data(), &count));
    std::string text;
    for (unsigned int i = 0; i < count; ++i) {
      text += formatted("{:02x}", bytes[i]);
    }
    return text;
  }

 private:
  static void check(int result) {
    TESSERA_CHECK(result == 1, "libcrypto cannot compute hashes here");
  }

  std::unique_ptr<EVP_MD_CTX, FreeDigest> context_;
};

} // namespace

std::string content_hash_of(
    const std::filesystem::path& file,
    ContentHash kind) {
  constexpr size_t kChunkBytes = size_t{1} << 20;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) {
    detail::fail_on("open", file, errno);
  }
  Digest digest(kind == ContentHash::kSha256 ? EVP_sha256() : EVP_sha1());
  if (kind == ContentHash::kGitBlob) {
    const std::string header =
        formatted("blob {}", std::filesystem::file_size(file));
    digest.add(header.c_str(), header.size() + 1); // with the zero
  }
  std::vector<std::byte> chunk(kChunkBytes);
  while (true) {
    const ssize_t count = ::read(fd.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      detail::fail_on("read", file, errno);
    }
    if (count == 0) {
      return digest.finish();
    }
    digest.add(chunk.data(), static_cast<size_t>(count));
  }
}

} // namespace tessera::runtime

// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_cache.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/posix_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <system_error>

namespace tessera::runtime {

namespace {

namespace fs = std::filesystem;

std::string folder_name(const HubName& name) {
  std::string text = name.is_data_set ? "datasets--" : "models--";
  for (const char c : name.repository) {
    if (c == '/') {
      text += "--";
    } else {
      text += c;
    }
  }
  return text;
}

void make_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  TESSERA_CHECK(
      !code,
      "cannot make the folder '{}': {}; set HF_HOME to a folder for models and data of the Hub",
      folder.string(),
      code.message());
}

int locked(int fd, int operation) {
  int result = 0;
  do {
    result = ::flock(fd, operation);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

} // namespace

HubCache::HubCache(const fs::path& root, const HubName& name)
    : folder_(root / folder_name(name)),
      locks_(root / ".locks" / folder_name(name)) {}

fs::path HubCache::snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

std::optional<std::string> HubCache::known_commit(
    const std::string& revision) const {
  std::error_code code;
  const fs::path ref = folder_ / "refs" / revision;
  if (fs::is_regular_file(ref, code)) {
    const std::string commit = read_text_file(ref);
    return commit.substr(0, commit.find_first_of(" \r\n"));
  }
  return fs::is_directory(snapshot(revision), code) ? std::optional(revision)
                                                    : std::nullopt;
}

fs::path HubCache::blob(const HubFile& file) const {
  return folder_ / "blobs" / file.hash;
}

void HubCache::make_folders(const std::string& commit) const {
  make_folder(folder_ / "blobs");
  make_folder(folder_ / "refs");
  make_folder(snapshot(commit));
}

void HubCache::link(const std::string& commit, const HubFile& file) const {
  const fs::path path = snapshot(commit) / file.path;
  std::error_code code;
  if (fs::exists(path, code)) {
    return;
  }
  make_folder(path.parent_path());
  fs::remove(path, code); // a link to nothing
  fs::create_symlink(fs::relative(blob(file), path.parent_path()), path, code);
  if (code && code != std::errc::file_exists) { // no links on this disk
    fs::copy_file(blob(file), path, code);
    TESSERA_CHECK(!code, "cannot make '{}': {}", path.string(), code.message());
  }
}

void HubCache::set_commit(
    const std::string& revision,
    const std::string& commit) const {
  if (revision == commit) {
    return;
  }
  const fs::path ref = folder_ / "refs" / revision;
  make_folder(ref.parent_path());
  write_file_atomically(ref, commit);
}

fs::path HubCache::lock_file(const std::string& name) const {
  return locks_ / (name + ".lock");
}

UniqueFd HubCache::lock(const std::string& name, const std::string& label)
    const {
  make_folder(locks_);
  const fs::path file = lock_file(name);
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd.is_open()) {
    detail::fail_on("create", file, errno);
  }
  int code = locked(fd.get(), LOCK_EX | LOCK_NB);
  if (code == EWOULDBLOCK) {
    log_info("waiting for another process, which fetches {}", label);
    code = locked(fd.get(), LOCK_EX);
  }
  if (code != 0) {
    log_warning(
        "'{}' cannot be locked ({}): make sure that only one process fetches {}",
        file.string(),
        detail::errno_text(code),
        label);
  }
  return fd;
}

} // namespace tessera::runtime

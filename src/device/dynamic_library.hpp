#pragma once
#include <dlfcn.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

namespace hat {

/// A library that is loaded when it is needed: hosts that lack it run the same executable.
class DynamicLibrary {
 public:
  /// The first of `names` that can be loaded; where none can, `problem` tells why.
  explicit DynamicLibrary(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      handle_.reset(dlopen(name, RTLD_NOW | RTLD_LOCAL));
      if (handle_) return;
      const char* const why = dlerror();
      if (problem_.empty()) problem_ = why == nullptr ? std::string("cannot load ") + name : why;
    }
  }

  bool is_loaded() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }

  /// The function of that name, whose type the caller knows; null where there is none.
  template <class Function>
  Function* find(const char* name) const {
    return handle_ ? reinterpret_cast<Function*>(dlsym(handle_.get(), name)) : nullptr;
  }
  template <class Function>
  bool find(Function*& function, const char* name) const {
    function = find<Function>(name);
    return function != nullptr;
  }

 private:
  struct Close {
    void operator()(void* library) const noexcept { dlclose(library); }
  };
  std::unique_ptr<void, Close> handle_;
  std::string problem_;
};

}  // namespace hat

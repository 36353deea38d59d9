# -DHAT_KERNELS_ONLY=ON: the kernels for GPUs and the program that checks them, on a machine that may have the CUDA toolkit
# and nothing else. {fmt} and NCCL are used where they are.
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.24)
    set(CMAKE_CUDA_ARCHITECTURES native)  # of the card that is to be checked
  endif()
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc takes it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu kernels/cuda/*.cpp src/device/cuda/*.cpp)
list(APPEND cuda_sources src/device/device.cpp src/device/device_buffer.cpp src/device/nccl_algorithm.cpp
  src/device/no_nvtx/profiler.cpp)
# The model, whose other devices' kernels and whose file formats it does without.
foreach(name IN ITEMS attention_block batch_upload compute_options flop_count head_block layout mlp_block norm
    range_exchange staged_exchange transformer)
  list(APPEND cuda_sources src/model/${name}.cpp)
endforeach()
list(APPEND cuda_sources tools/device_check_program/kernels_only/operations.cpp)
find_package(Threads REQUIRED)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  list(APPEND cuda_sources src/device/nccl/nccl_communicator.cpp src/device/nccl/nccl_library.cpp)
  set_source_files_properties(src/device/nccl/nccl_library.cpp PROPERTIES
    COMPILE_DEFINITIONS "HAT_NCCL=\"${NCCL_LIBRARY}\"")
else()
  list(APPEND cuda_sources src/device/no_nccl/nccl_communicator.cpp)
endif()
set_source_files_properties(src/device/cuda/cublaslt_library.cpp PROPERTIES
  COMPILE_DEFINITIONS "HAT_CUBLASLT=\"${CUDAToolkit_LIBRARY_DIR}/libcublasLt.so\"")

add_library(hat_cuda OBJECT ${cuda_sources})
target_include_directories(hat_cuda PUBLIC include src kernels/cuda kernels/cuda/ptx ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(hat_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
target_link_libraries(hat_cuda PUBLIC CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
find_package(fmt QUIET)
if(fmt_FOUND AND NOT HAT_FMT_STAND_IN)
  target_link_libraries(hat_cuda PUBLIC fmt::fmt)
else()
  target_include_directories(hat_cuda PUBLIC tools/device_check_program/fmt_stand_in)
endif()
include(tools/device_check_program/device_check.cmake)
hat_device_check(device_check hat_cuda)

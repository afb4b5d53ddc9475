target triple = "x86_64-unknown-linux-gnu"

define void @tanh(ptr %p0, ptr %p1, i64 %p2) #0 {
entry:
  %t58 = alloca {ptr, ptr, i64}, align 8
  %t57 = ashr i64 %p2, 6
  %t59 = getelementptr {ptr, ptr, i64}, ptr %t58, i32 0, i32 0
  store ptr %p0, ptr %t59
  %t60 = getelementptr {ptr, ptr, i64}, ptr %t58, i32 0, i32 1
  store ptr %p1, ptr %t60
  %t61 = getelementptr {ptr, ptr, i64}, ptr %t58, i32 0, i32 2
  store i64 %p2, ptr %t61
  call void @kiln_parallel_for(ptr @tanh.body0.entry, ptr %t58, i64 %t57)
  %t62 = mul i64 %t57, 64
  %t63 = and i64 %p2, 63
  %t64 = add i64 %t62, %t63
  %t67 = icmp slt i64 %t62, %t64
  br i1 %t67, label %b65, label %b66
b65:
  %t68 = phi i64 [ %t62, %entry ], [ %t69, %b70 ]
  %t71 = mul nsw i64 %t68, 16
  %t72 = getelementptr inbounds i8, ptr %p0, i64 %t71
  %t73 = load <4 x float>, ptr %t72, align 4
  %t74 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %t73)
  %t75 = fmul contract <4 x float> %t73, %t73
  %t76 = fmul contract <4 x float> %t73, %t75
  %t77 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0xBF76971260000000, float 0xBF76971260000000, float 0xBF76971260000000, float 0xBF76971260000000>, <4 x float> %t75, <4 x float> <float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000>)
  %t78 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t77, <4 x float> %t75, <4 x float> <float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000>)
  %t79 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t78, <4 x float> %t75, <4 x float> <float 0x3FC1103F20000000, float 0x3FC1103F20000000, float 0x3FC1103F20000000, float 0x3FC1103F20000000>)
  %t80 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t79, <4 x float> %t75, <4 x float> <float 0xBFD5555240000000, float 0xBFD5555240000000, float 0xBFD5555240000000, float 0xBFD5555240000000>)
  %t81 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t76, <4 x float> %t80, <4 x float> %t73)
  %t82 = fadd contract <4 x float> %t74, %t74
  %t83 = fcmp ogt <4 x float> <float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000>, %t82
  %t84 = select <4 x i1> %t83, <4 x float> <float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000>, <4 x float> %t82
  %t85 = fcmp olt <4 x float> <float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000>, %t84
  %t86 = select <4 x i1> %t85, <4 x float> <float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000>, <4 x float> %t84
  %t87 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t86, <4 x float> <float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000>, <4 x float> <float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000>)
  %t88 = fsub contract <4 x float> %t87, <float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000>
  %t89 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t88, <4 x float> <float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000>, <4 x float> %t86)
  %t90 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t88, <4 x float> <float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000>, <4 x float> %t89)
  %t91 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0x3F80FA7D80000000, float 0x3F80FA7D80000000, float 0x3F80FA7D80000000, float 0x3F80FA7D80000000>, <4 x float> %t90, <4 x float> <float 0x3FA573AD00000000, float 0x3FA573AD00000000, float 0x3FA573AD00000000, float 0x3FA573AD00000000>)
  %t92 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t91, <4 x float> %t90, <4 x float> <float 0x3FC555A6E0000000, float 0x3FC555A6E0000000, float 0x3FC555A6E0000000, float 0x3FC555A6E0000000>)
  %t93 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t92, <4 x float> %t90, <4 x float> <float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000>)
  %t94 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t93, <4 x float> %t90, <4 x float> <float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000>)
  %t95 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t94, <4 x float> %t90, <4 x float> <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>)
  %t96 = bitcast <4 x float> %t87 to <4 x i32>
  %t97 = shl <4 x i32> %t96, <i32 23, i32 23, i32 23, i32 23>
  %t98 = bitcast <4 x i32> %t97 to <4 x float>
  %t99 = fmul contract <4 x float> %t95, %t98
  %t100 = fadd contract <4 x float> %t99, <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>
  %t101 = fdiv <4 x float> <float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000>, %t100
  %t102 = fsub contract <4 x float> <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>, %t101
  %t103 = fcmp olt <4 x float> <float 0x3FE4000000000000, float 0x3FE4000000000000, float 0x3FE4000000000000, float 0x3FE4000000000000>, %t74
  %t104 = fcmp olt <4 x float> %t73, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %t105 = fneg <4 x float> %t102
  %t106 = select <4 x i1> %t104, <4 x float> %t105, <4 x float> %t102
  %t107 = select <4 x i1> %t103, <4 x float> %t106, <4 x float> %t81
  %t108 = mul nsw i64 %t68, 16
  %t109 = getelementptr inbounds i8, ptr %p1, i64 %t108
  store <4 x float> %t107, ptr %t109, align 4
  br label %b70
b70:
  %t69 = add nsw i64 %t68, 1
  %t110 = icmp slt i64 %t69, %t64
  br i1 %t110, label %b65, label %b66
b66:
  ret void
}

define internal void @tanh.body0.entry(ptr %closure, i64 %begin, i64 %end) #0 {
  %f0 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 0
  %v0 = load ptr, ptr %f0
  %f1 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 1
  %v1 = load ptr, ptr %f1
  %f2 = getelementptr {ptr, ptr, i64}, ptr %closure, i32 0, i32 2
  %v2 = load i64, ptr %f2
  call void @tanh.body0(ptr %v0, ptr %v1, i64 %v2, i64 %begin, i64 %end)
  ret void
}

define internal void @tanh.body0(ptr %c0, ptr %c1, i64 %c2, i64 %begin, i64 %end) #0 {
entry:
  %t3 = icmp slt i64 %begin, %end
  br i1 %t3, label %b1, label %b2
b1:
  %t4 = phi i64 [ %begin, %entry ], [ %t5, %b6 ]
  %t12 = mul nsw i64 %t4, 1024
  %t13 = getelementptr inbounds i8, ptr %c0, i64 %t12
  %t51 = mul nsw i64 %t4, 1024
  %t52 = getelementptr inbounds i8, ptr %c1, i64 %t51
  br label %b7
b7:
  %t9 = phi i64 [ 0, %b1 ], [ %t10, %b11 ]
  %t14 = mul nsw i64 %t9, 16
  %t15 = getelementptr inbounds i8, ptr %t13, i64 %t14
  %t16 = load <4 x float>, ptr %t15, align 4
  %t17 = call <4 x float> @llvm.fabs.v4f32(<4 x float> %t16)
  %t18 = fmul contract <4 x float> %t16, %t16
  %t19 = fmul contract <4 x float> %t16, %t18
  %t20 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0xBF76971260000000, float 0xBF76971260000000, float 0xBF76971260000000, float 0xBF76971260000000>, <4 x float> %t18, <4 x float> <float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000, float 0x3F94F5EFC0000000>)
  %t21 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t20, <4 x float> %t18, <4 x float> <float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000, float 0xBFAB7CFF20000000>)
  %t22 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t21, <4 x float> %t18, <4 x float> <float 0x3FC1103F20000000, float 0x3FC1103F20000000, float 0x3FC1103F20000000, float 0x3FC1103F20000000>)
  %t23 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t22, <4 x float> %t18, <4 x float> <float 0xBFD5555240000000, float 0xBFD5555240000000, float 0xBFD5555240000000, float 0xBFD5555240000000>)
  %t24 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t19, <4 x float> %t23, <4 x float> %t16)
  %t25 = fadd contract <4 x float> %t17, %t17
  %t26 = fcmp ogt <4 x float> <float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000>, %t25
  %t27 = select <4 x i1> %t26, <4 x float> <float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000, float 0xC05601E680000000>, <4 x float> %t25
  %t28 = fcmp olt <4 x float> <float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000>, %t27
  %t29 = select <4 x i1> %t28, <4 x float> <float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000, float 0x40562E4300000000>, <4 x float> %t27
  %t30 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t29, <4 x float> <float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000, float 0x3FF7154760000000>, <4 x float> <float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000>)
  %t31 = fsub contract <4 x float> %t30, <float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000, float 0x4168000FE0000000>
  %t32 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t31, <4 x float> <float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000, float 0xBFE62E4000000000>, <4 x float> %t29)
  %t33 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t31, <4 x float> <float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000, float 0xBEB7F7D1C0000000>, <4 x float> %t32)
  %t34 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> <float 0x3F80FA7D80000000, float 0x3F80FA7D80000000, float 0x3F80FA7D80000000, float 0x3F80FA7D80000000>, <4 x float> %t33, <4 x float> <float 0x3FA573AD00000000, float 0x3FA573AD00000000, float 0x3FA573AD00000000, float 0x3FA573AD00000000>)
  %t35 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t34, <4 x float> %t33, <4 x float> <float 0x3FC555A6E0000000, float 0x3FC555A6E0000000, float 0x3FC555A6E0000000, float 0x3FC555A6E0000000>)
  %t36 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t35, <4 x float> %t33, <4 x float> <float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000, float 0x3FDFFFDC40000000>)
  %t37 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t36, <4 x float> %t33, <4 x float> <float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000, float 0x3FEFFFFF60000000>)
  %t38 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %t37, <4 x float> %t33, <4 x float> <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>)
  %t39 = bitcast <4 x float> %t30 to <4 x i32>
  %t40 = shl <4 x i32> %t39, <i32 23, i32 23, i32 23, i32 23>
  %t41 = bitcast <4 x i32> %t40 to <4 x float>
  %t42 = fmul contract <4 x float> %t38, %t41
  %t43 = fadd contract <4 x float> %t42, <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>
  %t44 = fdiv <4 x float> <float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000, float 0x4000000000000000>, %t43
  %t45 = fsub contract <4 x float> <float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000, float 0x3FF0000000000000>, %t44
  %t46 = fcmp olt <4 x float> <float 0x3FE4000000000000, float 0x3FE4000000000000, float 0x3FE4000000000000, float 0x3FE4000000000000>, %t17
  %t47 = fcmp olt <4 x float> %t16, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %t48 = fneg <4 x float> %t45
  %t49 = select <4 x i1> %t47, <4 x float> %t48, <4 x float> %t45
  %t50 = select <4 x i1> %t46, <4 x float> %t49, <4 x float> %t24
  %t53 = mul nsw i64 %t9, 16
  %t54 = getelementptr inbounds i8, ptr %t52, i64 %t53
  store <4 x float> %t50, ptr %t54, align 4
  br label %b11
b11:
  %t10 = add nsw i64 %t9, 1
  %t55 = icmp slt i64 %t10, 64
  br i1 %t55, label %b7, label %b8
b8:
  br label %b6
b6:
  %t5 = add nsw i64 %t4, 1
  %t56 = icmp slt i64 %t5, %end
  br i1 %t56, label %b1, label %b2
b2:
  ret void
}

declare <4 x float> @llvm.fabs.v4f32(<4 x float>)
declare <4 x float> @llvm.fmuladd.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare void @kiln_parallel_for(ptr, ptr, i64)

!0 = !{i32 1}

attributes #0 = { "target-cpu"="x86-64" "target-features"="-adx,-aes,-amx-avx512,-amx-bf16,-amx-complex,-amx-fp16,-amx-fp8,-amx-int8,-amx-movrs,-amx-tf32,-amx-tile,-avx,-avx10.1,-avx10.2,-avx2,-avx512bf16,-avx512bitalg,-avx512bw,-avx512cd,-avx512dq,-avx512f,-avx512fp16,-avx512ifma,-avx512vbmi,-avx512vbmi2,-avx512vl,-avx512vnni,-avx512vp2intersect,-avx512vpopcntdq,-avxifma,-avxneconvert,-avxvnni,-avxvnniint16,-avxvnniint8,-bmi,-bmi2,-ccmp,-cf,-cldemote,-clflushopt,-clwb,-clzero,+cmov,-cmpccxadd,-crc32,-cx16,+cx8,-egpr,-enqcmd,-f16c,-fma,-fma4,-fsgsbase,+fxsr,-gfni,-hreset,-invpcid,-kl,-lwp,-lzcnt,+mmx,-movbe,-movdir64b,-movdiri,-movrs,-mwaitx,-ndd,-nf,-pclmul,-pconfig,-pku,-popcnt,-ppx,-prefetchi,-prfchw,-ptwrite,-push2pop2,-raoint,-rdpid,-rdpru,-rdrnd,-rdseed,-rtm,-sahf,-serialize,-sgx,-sha,-sha512,-shstk,-sm3,-sm4,+sse,+sse2,-sse3,-sse4.1,-sse4.2,-sse4a,-ssse3,-tbm,-tsxldtrk,-uintr,-usermsr,-vaes,-vpclmulqdq,-waitpkg,-wbnoinvd,-widekl,-xop,-xsave,-xsavec,-xsaveopt,-xsaves,-zu" }
